"""Models on real servers, whose loops run in threads: pulled, pushed, cut, saved, lost and given again."""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager
from functools import cache, partial

import numpy as np
import pytest

from shared.errors import LostError, RefusedError, SettingsError
from shared.keys import ServerKeys, make_keys
from shared.quick_import import quick_import
from shared.wire.message_parts import DoneSet, EpochDone, Lease
from tests.support.loaders import wait_until
from tests.support.reserved_host import reserved_host
from trainer_client.training.servers.command import client_keys
from trainer_client.training.servers.server_connections import ServerConnections
from trainer_client.training.servers.service import ParameterServer

with quick_import():
    import keras
    import tensorflow as tf

from trainer_client.training.servers.served_model import MovedError, ServedModel, SharesSettings
from trainer_client.training.servers.served_optimizer import CollectedGradients
from trainer_client.training.servers.share_store import ShareStore

NOTHING = DoneSet((EpochDone(0, 0, ()),))
ROWS = 5001


def make_optimizer():
    return keras.optimizers.Adam(0.1)


class Tables(keras.Model):
    """A table that is cut over two servers, and a layer that is not."""

    def __init__(self, out="out"):
        super().__init__()
        self.table = keras.layers.Embedding(ROWS, 4, name="words", embeddings_initializer="ones")
        self.dense = keras.layers.Dense(1, name=out, kernel_initializer="ones")

    def call(self, words):
        return self.dense(self.table(words))


def built(make=Tables):
    model = make()
    model(np.zeros((1, 1), np.int32))
    return model


class Served:
    """Servers in threads."""

    def __init__(self, many, make=make_optimizer, keys=None, memory=None):
        self.make, self.keys, self.memory = make, keys, memory
        self.hosts = ExitStack()
        self.endpoints = [f"tcp://{self.hosts.enter_context(reserved_host())}" for _ in range(many)]
        self.running = {}
        for at in reversed(range(many)):
            self.start(at)

    def start(self, at):
        others = self.endpoints[1:] if at == 0 else ()
        keys = (ServerKeys.read(self.keys, "trainer"), client_keys(self.keys)) if self.keys else None
        server = ParameterServer(
            self.endpoints[at], ShareStore(self.make, self.memory), is_first=at == 0, others=others, keys=keys
        )
        thread = threading.Thread(target=self.serve, args=(server,), daemon=True)
        thread.start()
        self.running[at] = (server, thread)
        return server

    @staticmethod
    def serve(server):
        try:
            server.serve()
        finally:
            server.close()

    def stop(self, at):
        server, thread = self.running.pop(at)
        server.state.has_ended = True
        thread.join(30)
        assert not thread.is_alive()

    def close(self):
        with self.hosts:
            for at in list(self.running):
                self.stop(at)

    @contextmanager
    def trainer(self, model=None, *, staleness=4, memory=None, most=0, make=None, lost_s=60.0):
        connections = ServerConnections(self.endpoints, client_keys(self.keys), lost_s)
        settings = SharesSettings(staleness=staleness, most=most, memory=memory)
        try:
            yield ServedModel(model or built(), (make or self.make)(), connections, settings)
        finally:
            connections.close()


@pytest.fixture(params=[1, 2], ids=["one", "two"])
def served(request):
    served = Served(request.param)
    yield served
    served.close()


def lease(number, nth=1):
    return Lease(0, number, nth)


@cache
def collecting(model, optimizer):
    """A step of the loop, which is traced once for all calls, and where each call leaves its gradients."""
    kept = CollectedGradients(optimizer, model.trainable_variables, goes_on=False)

    @partial(tf.function, autograph=False)
    def step(words):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(words) ** 2)
        kept.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

    return step, kept


def gradients_of(model, optimizer, words):
    """As a step of the loop collects them."""
    step, kept = collecting(model, optimizer)
    step(tf.constant(words))
    return kept.read()


def plain_run(steps):
    """The variables and the optimizer's after these steps in one process."""
    model, optimizer = built(), make_optimizer()
    optimizer.build(model.trainable_variables)
    for words in steps:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(tf.constant(words)) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        dense = [tf.convert_to_tensor(one) for one in gradients]  # Keras' Adam takes a row that is named twice for two
        optimizer.apply(dense, model.trainable_variables)
    return [one.numpy() for one in (*model.trainable_variables, *optimizer.variables)]


STEPS = ([[1, 5000], [2500, 1]], [[2501, 7], [7, 7]], [[1, 2], [3, 4]])


def close(left, right):
    for one, other in zip(left, right, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:Converting sparse IndexedSlices")
def test_steps_over_servers_are_those_of_one_process(served):
    """Of the optimizer's state too, which is put together from all servers, and given to others."""
    model = built()
    with served.trainer(model) as chief, served.trainer() as worker:
        optimizer = make_optimizer()
        assert not chief.look()
        chief.serve(NOTHING, 0)
        assert chief.look()
        worker.wait_for_shares(60)
        for number, words in enumerate(STEPS):
            worker._heard_version = chief._heard_version = number
            worker.pull()
            mine = [one.numpy() for one in worker._variables]
            chief.pull()
            close(mine, [one.numpy() for one in model.trainable_variables])
            who = worker if number % 2 else chief
            assert who.push(lease(number), gradients_of(model, optimizer, words))
        done = chief.save(0)
        state = [*chief._state.common, *(one for pair in zip(*chief._state.of_each, strict=True) for one in pair)]
        assert done == DoneSet((EpochDone(0, 3, ()),))
        assert chief.version == 3
        plain = plain_run(STEPS)
        close([one.numpy() for one in model.trainable_variables], plain[:3])
        assert sum(one.numpy().sum() for one in state) == pytest.approx(sum(one.sum() for one in plain[3:]), rel=1e-4)
        assert int(chief._state.common[0].numpy()) == 3
    assert [one.state.counts["applied"] for one, _ in served.running.values()][-1] == 3


def test_a_table_is_spread_over_servers_and_a_server_that_is_too_small_is_an_error():
    served = Served(2)
    try:
        half = 3 * 4 * (4 * (ROWS + 1) // 2 + 5)
        with served.trainer(memory=half) as chief:
            chief.serve(NOTHING, 0)
            assert chief.look()
        rows = [[part.shape[0] for part in one.state.parts if part.variable == 0] for one, _ in served.running.values()]
        assert sorted(rows) == [[2500], [2501]]
        with served.trainer(memory=half // 2) as chief, pytest.raises(SettingsError, match="Add parameter servers"):
            chief.serve(NOTHING, 0)
    finally:
        served.close()


def test_stale_gradients_are_refused_and_those_of_a_batch_that_is_applied_are_as_good_as_applied(served):
    model, optimizer = built(), make_optimizer()
    words = [[1, 2]]
    with served.trainer(model, staleness=1) as chief, served.trainer() as late:
        chief.serve(NOTHING, 0)
        assert chief.look()
        late.wait_for_shares(60)
        late.pull()
        for number in range(2):
            chief.pull()
            assert chief.push(lease(number), gradients_of(model, optimizer, words))
        found = gradients_of(model, optimizer, words)
        assert not late.push(lease(9), found)
        late.pull()
        assert late.push(lease(9, 2), found)
        assert late.push(lease(0, 2), found)
        assert late.version == 2
        chief.pull()
        assert chief.version == 3, "the batch that was there already is not applied again"


def test_after_a_server_is_lost_all_begin_with_what_the_chief_gives_them(served):
    last = len(served.endpoints) - 1
    model, optimizer = built(), make_optimizer()
    with served.trainer(model) as chief, served.trainer() as worker:
        chief.serve(NOTHING, 0)
        assert chief.look()
        worker.wait_for_shares(60)
        worker.pull()
        chief.pull()
        assert chief.push(lease(0), gradients_of(model, optimizer, [[3, 3]]))
        done = chief.save(0)
        saved = [one.numpy() for one in model.trainable_variables]
        assert chief.push(lease(1), gradients_of(model, optimizer, [[3, 3]]))
        served.stop(last)
        served.start(last)
        with pytest.raises(MovedError):
            worker.pull()
        assert not worker.look()
        with pytest.raises(MovedError):
            worker.push(lease(2), {})
        for variable, value in zip(model.trainable_variables, saved, strict=True):
            variable.assign(value)
        chief.serve(done, 1)
        assert chief.look()
        worker.wait_for_shares(60)
        worker.pull()
        close([one.numpy() for one in worker._variables], saved)
        assert worker.push(lease(0, 2), {})
        worker.pull()
        assert worker.version == 1
        assert worker.push(lease(1, 2), {})
        worker.pull()
        assert worker.version == 2


def test_the_run_is_over_for_all_and_servers_end_when_all_have_left(served):
    with served.trainer(most=1) as chief, served.trainer() as worker:
        chief.serve(NOTHING, 0)
        assert chief.look()
        worker.wait_for_shares(60)
        for one in (chief, worker):
            one.pull()
        assert chief.push(lease(0), {})
        assert not worker.push(lease(1), {})
        assert worker.over == "1 step is reached"
        with served.trainer() as late, pytest.raises(MovedError):
            late.finish("a chief that knows of no share")
        chief.finish("the chief has finished" + 300 * "!")
        worker.quit()
        chief.quit()
        for _, thread in served.running.values():
            wait_until(lambda thread=thread: not thread.is_alive(), "a server ends")


def test_with_keys_only_trainers_are_heard(tmp_path):
    """The first server's orders to the other one come with a trainer's key, too."""
    make_keys(tmp_path)
    served = Served(2, keys=tmp_path)
    model, optimizer = built(), make_optimizer()
    try:
        with served.trainer(model) as chief:
            chief.serve(NOTHING, 0)
            assert chief.look()
            chief.pull()
            assert chief.push(lease(0), gradients_of(model, optimizer, [[1, 5000]]))
            chief.pull()
            assert [one.state.version for one, _ in served.running.values()] == [1, 1]
            (tmp_path / "allowed" / "trainer" / "trainer.key").rename(tmp_path / "allowed" / "worker" / "trainer.key")
            wait_until(lambda: refuses(chief), "the key is no trainer's any more")
        assert any(one._guard.wrong_roles for one, _ in served.running.values())
    finally:
        served.close()


def refuses(chief):
    try:
        chief.pull()
    except RefusedError as error:
        return "a key in allowed/trainer" in str(error)
    return False


def test_the_first_server_ends_though_another_is_not_there_to_be_told():
    served = Served(2)
    served.stop(1)
    first, thread = served.running.pop(0)
    wait_until(lambda: first._others[0][1], "an order waits for a connection")
    first.state.has_ended = True
    thread.join(30)
    assert not thread.is_alive()
    served.close()


def test_servers_end_though_the_first_is_killed_before_it_could_say_so():
    served = Served(3)
    with served.trainer() as chief:
        chief.serve(NOTHING, 0)
        assert chief.look()
        first, _ = served.running[0]
        first._send_orders = lambda: None
        chief.finish("the chief has finished")
        served.stop(0)
        chief.quit()
        for _, thread in served.running.values():
            wait_until(lambda thread=thread: not thread.is_alive(), "a server ends")
    served.close()


@pytest.mark.parametrize("ask", [lambda chief: chief.pull(), lambda chief: chief.save(0)], ids=["pull", "save"])
def test_nobody_waits_for_orders_that_died_with_the_first_server(ask):
    served = Served(2)
    with served.trainer(lost_s=60) as chief:
        chief.serve(NOTHING, 0)
        assert chief.look()
        chief.pull()
        served.running[0][0]._send_orders = lambda: None
        assert chief.push(lease(0), {})
        served.stop(0)
        served.start(0)
        with pytest.raises(MovedError):
            ask(chief)
    served.close()


def test_a_server_with_another_optimizer_refuses_its_share_and_serves_on(served):
    with served.trainer() as chief:
        chief.serve(NOTHING, 0)
        with served.trainer(make=lambda: keras.optimizers.SGD(0.1)) as other, pytest.raises(RefusedError):
            other.serve(NOTHING, 0)
        assert chief.look()
        chief.pull()


def test_who_waits_for_shares_can_be_told_to_stop(served):
    asked = []

    def heed():
        asked.append("once more")
        if len(asked) == 3:
            raise KeyboardInterrupt

    with served.trainer() as worker, pytest.raises(KeyboardInterrupt):
        worker.wait_for_shares(600, heed)


def test_who_waits_for_servers_that_are_not_there_can_be_told_to_stop():
    def heed():
        raise KeyboardInterrupt

    with ExitStack() as stack:
        connections = ServerConnections([f"tcp://{stack.enter_context(reserved_host())}"], None, 600)
        stack.callback(connections.close)
        served = ServedModel(built(), make_optimizer(), connections, SharesSettings(staleness=1, most=0, memory=None))
        with pytest.raises(KeyboardInterrupt):
            served.wait_for_shares(600, heed)


def test_a_server_that_does_not_answer_is_lost():
    with ExitStack() as stack:
        connections = ServerConnections([f"tcp://{stack.enter_context(reserved_host())}"], None, 0.2)
        stack.callback(connections.close)
        served = ServedModel(built(), make_optimizer(), connections, SharesSettings(staleness=1, most=0, memory=None))
        with pytest.raises(LostError, match=r"parameter server 0 within 0\.2 s"):
            served.look()


def same_names():
    return Tables(out="words")


def constrained():
    return keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_constraint="non_neg")])


@pytest.mark.parametrize(
    ("make", "words"),
    [(same_names, 'got two that are called "[a-z_0-9/]*words"'), (constrained, "variables without constraints")],
)
def test_what_servers_cannot_hold_is_refused(make, words):
    with pytest.raises(SettingsError, match=words):
        ServedModel(built(make), make_optimizer(), None, SharesSettings(staleness=1, most=0, memory=None))


def test_another_model_is_refused(served):
    with served.trainer() as chief, served.trainer(built(lambda: keras.Sequential([keras.layers.Dense(1)]))) as other:
        chief.serve(NOTHING, 0)
        with pytest.raises(SettingsError, match="the same --model"):
            other.look()
