"""`trainer-client train`: training of a user's model on a running job's stream, up to a target.

Rules: whatever can fail without a rank fails before one is taken, because attaching takes the rank from the trainer
that has it: the user's module, the model and its optimizer, and the validation streams. The coordinator has answered
before TensorFlow is imported, which takes seconds. Only one process of a run writes. An export is there whole or not at
all.
"""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared.errors import SettingsError
from shared.keys import ClientKeys
from shared.quick_import import quick_import
from shared.stores.own_files import refuse_closed
from trainer_client.network.coordinator_client import wait_for_coordinator
from trainer_client.training.runs.model_module import JobOrder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainer_client.feed import Feed
    from trainer_client.training.loop.placement import Placement
    from trainer_client.training.loop.training_loop import TrainingData
    from trainer_client.training.runs.until import LoopSettings
    from trainer_client.training.strategies.options import StrategyOptions

__all__ = ["TrainOrder", "export_model", "placement_of", "train"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOrder(JobOrder):
    """The settings of the command line."""

    stream: str
    strategy: StrategyOptions
    loop: LoopSettings
    #: Validation streams, and how often to evaluate on them: `epochs` or `steps` of `Validation`.
    judges: tuple[str, ...]
    judge_every: dict[str, Any]
    #: Where to write the trained model at the end; None: nowhere.
    export: Path | None
    #: The dtype policy of the model's layers.
    precision: str
    #: For the same weights again on a CPU; None: Keras is not seeded.
    seed: int | None
    #: Where to serve metrics: arguments of `connect`.
    metrics: dict[str, Any]


def train(order: TrainOrder) -> None:
    """Train until the target is reached, with the strategy that the order names, or serve as a parameter server.

    Folders, validation streams and, except with servers, the user's module are checked before the training feed
    attaches: raise SettingsError, DataError, LostError, RefusedError or MachineError for what is wrong there, and any
    error of the module's functions or of devices, before a rank is taken. Errors of attaching and of the loop, a
    KeyboardInterrupt among them, are passed on, and then nothing is exported; those of the export are passed on as
    well.
    """
    if order.export is not None:
        _refuse_to_replace(order.export)
    if order.strategy.name == "parameter-server":
        _train_with_servers(order)
        return
    with ExitStack() as stack:
        # The coordinator answers before the slow imports of TensorFlow and the user's module.
        keys = ClientKeys.read(order.keys, "trainer", to="coordinator") if order.keys else None
        wait_for_coordinator(order.endpoint, keys, order.connect_timeout_s)
        # Ranks come from the placement, which imports TensorFlow. Only with a single device are the ranks known before:
        # then a bad validation stream is refused before that import.
        placement = None if order.strategy.name == "single" else placement_of(order.strategy)
        judging = {"rank": 0} if placement is None else placement.judging
        judges = [stack.enter_context(_connect_judge(order, name, **judging)) for name in order.judges]
        placement = placement or placement_of(order.strategy)
        _refuse_closed(order, writes=placement.writes)
        from trainer_client.training.loop.training_loop import TrainingLoop

        model = _model(order, placement)
        # Which of the two the stream needs is only known once it is open.
        if order.module.find("dataset_pipeline") is None:
            order.module.feed_keys()
        callbacks = _callbacks(order, judges)
        order.module.refuse_unknown_parameters()
        # This takes the ranks from the trainers that have them, so all that may be refused without was refused above.
        feed = _connect(stack, order, **placement.ranks)
        for judge in judges:
            judge._session.evaluate_for(feed._session)
        data = _data(order, feed, placement)
        TrainingLoop(model, data, placement, order.loop, callbacks).run()
        _export(order, model, data, writes=placement.writes)


def _train_with_servers(order: TrainOrder) -> None:
    """Train as one of several workers, or serve as a parameter server, by this process's role.

    Raise SettingsError for validation by steps, as workers take no steps together, and for a role, a folder, keys or a
    module that are unfit. Errors of the module's functions, of serving, of connecting, of the loop and of the export
    are passed on.
    """
    from trainer_client.training.servers import command as servers

    if "steps" in order.judge_every:
        raise SettingsError(
            expected="--validate-every in epochs, as workers take no steps together", got="steps",
            where="--strategy parameter-server", remedy="Leave it out; or let epochs be shorter (epoch_parts).",
        )  # fmt: skip
    place = servers.role_with_servers()
    if place.is_ps:
        servers.serve_share(place, order.keys, partial(order.module.make, "optimizer"), order.strategy.server_memory)
        return
    _refuse_closed(order, writes=place.is_master)
    with ExitStack() as stack:
        # Only the chief calls callbacks; others connect to validation streams when it offers them to evaluate together.
        judges = [stack.enter_context(_connect_judge(order, name, rank=0)) for name in order.judges if place.is_master]
        feed = _connect(stack, order, rank=0, epochs=servers.epochs_of(order.loop.until))
        with quick_import():  # TensorFlow takes seconds
            from trainer_client.training.servers.served_loop import ServedLoop
            from trainer_client.training.strategies.single import Single
        model = _model(order, Single())
        data = _data(order, feed, Single())
        callbacks = _callbacks(order, judges) if place.is_master else []
        evaluations = _evaluations(stack, order, model, judges if place.is_master else None)
        order.module.refuse_unknown_parameters()
        connections = servers.connections_to(place, order.keys, order.connect_timeout_s)
        stack.callback(connections.close)
        worker = servers.worker_settings(place, order.strategy, order.loop.until)
        loop = ServedLoop(model, data, connections, worker, order.loop, callbacks, evaluations)
        loop.run()
        if place.is_master and order.export is not None:
            loop.hold_tables()
        _export(order, model, data, writes=place.is_master)


def _evaluations(stack: ExitStack, order: TrainOrder, model: Any, judges: Sequence[Feed] | None) -> Any:
    """Return this worker's part in evaluations, or None without validation streams; `judges` are the chief's feeds.

    Raise SettingsError if metrics or `feed_keys` of the module are unfit; errors of its functions are passed on.
    """
    if not order.judges:
        return None
    from trainer_client.training.evaluating.evaluation_part import EvaluationPart
    from trainer_client.training.servers.joint_evaluation import EvaluationFollower, EvaluationLeader

    every = order.judge_every["epochs"]
    if judges is not None:
        return EvaluationLeader(judges, every)
    keys, metrics = order.module.feed_keys(), order.module.make_if_there("eval_metrics") or ()

    def connect(streams: Sequence[str]) -> EvaluationPart:
        # Only once these are offered: of a stream in lockstep, connecting would take the place from the chief.
        feeds = [stack.enter_context(_connect_judge(order, name, rank=0)) for name in order.judges if name in streams]
        return EvaluationPart(model, [(feed, feed.dataset(**keys)) for feed in feeds], metrics)

    return EvaluationFollower(connect, every)


def placement_of(options: StrategyOptions) -> Placement:
    """Return the strategy that the options name, with this process's devices set up for it, and print its choice.

    Raise SettingsError if these devices, or this process's role, do not fit it, RuntimeError if the CPU is in use
    already and cannot be divided, and LostError if another process of a cluster is lost meanwhile.
    """
    with quick_import():  # TensorFlow takes seconds
        from trainer_client.training.loop import training_loop  # noqa: F401 - so that it is imported quickly, too
        from trainer_client.training.strategies.asynchronous import Asynchronous
        from trainer_client.training.strategies.central import Central
        from trainer_client.training.strategies.mirrored import Mirrored
        from trainer_client.training.strategies.multi_worker import MultiWorker
        from trainer_client.training.strategies.single import Single
        from trainer_client.training.strategies.towers.feeding import tower_devices
    of_towers: dict[str, Any] = {"mirrored": Mirrored, "central": Central, "async": Asynchronous}
    # A strategy heeds one of both at most: the other was refused when the options were read.
    choice, sums = options.all_reduce or options.variables or "auto", options.combine == "sum"
    placement: Placement
    if options.name in of_towers:
        placement = of_towers[options.name](tower_devices(options.replicas), choice, sums=sums)
    elif options.name == "multi-worker":
        placement = MultiWorker(options.replicas, options.all_reduce or "auto", sums=sums)
    else:
        placement = Single()
    if placement.choice:
        print(f"STRATEGY: {placement.choice}", flush=True)
    return placement


def _connect(stack: ExitStack, order: TrainOrder, **how: Any) -> Feed:
    """Return the training feed, until the stack ends; raise SettingsError if its stream is for evaluation.

    Errors of `connect` are passed on.
    """
    feed = stack.enter_context(order.connect(order.stream, **how, **order.metrics))
    if feed._session.spec.evaluation:
        raise SettingsError(
            expected="a stream for training", got=f"{order.stream}, which is for evaluation",
            where=f"--stream {order.stream}", remedy=f"Judge by it: --validate {order.stream}.",
        )  # fmt: skip
    return feed


def _connect_judge(order: TrainOrder, stream: str, **how: Any) -> Feed:
    """Return the feed of a validation stream, connected before the training feed takes anybody's rank.

    Raise SettingsError if the stream is one for training; errors of `connect` are passed on.
    """
    feed = order.connect(stream, work="evaluate", **how)
    if not feed._session.spec.evaluation:
        feed.close()
        raise SettingsError(
            expected="a stream with evaluation = true", got="one for training", where=f"--validate {stream}",
            remedy="Name a stream that is like the one for training, or write evaluation = true in it.",
        )  # fmt: skip
    return feed


def _model(order: TrainOrder, placement: Placement) -> Any:
    import keras

    if order.seed is not None:
        keras.utils.set_random_seed(order.seed)
    keras.config.set_dtype_policy(order.precision)
    with placement.scope():
        model = order.module.make("model")
        loss, optimizer = order.module.require("loss"), order.module.make("optimizer")
        model.compile(optimizer, loss, jit_compile=False)
    return model


def _data(order: TrainOrder, feed: Feed, placement: Placement) -> TrainingData:
    from trainer_client.training.loop.training_loop import TrainingData

    if feed._session.spec.producers:
        elements = placement.pipeline(feed, order.module.require("dataset_pipeline"))
        return TrainingData(feed=feed, elements=elements, for_each_shape=None)
    keys = order.module.feed_keys()
    return TrainingData(feed=feed, elements=placement.data(feed, keys), for_each_shape=partial(feed.warm_up, **keys))


def _callbacks(order: TrainOrder, judges: list[Feed]) -> list[Any]:
    """Return the callbacks, with validation first, so that the module's own find its values in the logs.

    Without validation streams they are the module's own, if any. Raise SettingsError if a piece of the module is no
    function, or if validation lacks `feed_keys` or has unfit ones. Errors of its functions are passed on.
    """
    own = list(order.module.make_if_there("callbacks") or ())
    if not judges:
        return own
    from trainer_client.training.evaluating.validation import Validation

    metrics = order.module.make_if_there("eval_metrics") or ()
    return [Validation(*judges, **order.judge_every, metrics=metrics, **order.module.feed_keys()), *own]


def _refuse_closed(order: TrainOrder, *, writes: bool) -> None:
    """Raise SettingsError now, not after hours of training, for a folder that the writer may not write to.

    In a process that does not write, do nothing.
    """
    places = {
        "--checkpoint": order.loop.checkpoints,
        "--summaries": order.loop.summaries,
        "--export": order.export.parent if order.export is not None else None,
    }
    for option, folder in places.items():
        if writes and folder is not None:
            refuse_closed(folder, where=option)


# --- the trained model ---


def _export(order: TrainOrder, model: Any, data: TrainingData, *, writes: bool) -> None:
    """Export the model if the order says where, in the process that writes; else do nothing.

    Errors of `export_model` are passed on.
    """
    if writes and order.export is not None:
        export_model(model, data.elements, order.export)


def _refuse_to_replace(path: Path) -> None:
    """Raise SettingsError if the export would replace a folder that is not an exported model.

    A `.keras` file replaces no folder at all; a SavedModel may replace an empty one.
    """
    is_folder_for_file = path.suffix == ".keras" and path.is_dir()
    is_no_model = path.is_dir() and any(path.iterdir()) and not (path / "saved_model.pb").exists()
    if is_folder_for_file or is_no_model:
        raise SettingsError(
            expected="a path of its own, or a model there that is to be replaced", got="a folder with something else",
            where=f"--export {path}", remedy="Name a path that is not there yet.",
        )  # fmt: skip


def export_model(model: Any, elements: Any, path: Path) -> None:
    """Write the model to `path`, a `.keras` file or the folder of a SavedModel, and replace an earlier export there.

    The SavedModel serves any number of rows. `elements` have the specs of the model's inputs; padded lengths that
    differ between batches are None in them. Print where the model is. Errors of saving are passed on, and leave an
    earlier export as it was; an earlier folder is lost only if the new one cannot be renamed in the end.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Written first into a folder whose name nobody can guess: TensorFlow would follow a link that is planted there.
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
        draft = Path(folder, path.name)
        if path.suffix == ".keras":
            model.save(draft)
        else:
            spec = elements.element_spec
            _save_served(model, spec[0] if isinstance(spec, tuple) else spec, draft)
            # A folder cannot be renamed over one that holds files.
            shutil.rmtree(path, ignore_errors=True)
        draft.replace(path)
    print(f"EXPORTED: {path}", flush=True)


def _save_served(model: Any, inputs: Any, folder: Path) -> None:
    import keras
    import tensorflow as tf

    archive = keras.export.ExportArchive()
    archive.track(model)
    signature = tf.nest.map_structure(lambda spec: tf.TensorSpec((None, *spec.shape[1:]), spec.dtype), inputs)
    archive.add_endpoint("serve", lambda served: model(served, training=False), input_signature=[signature])
    archive.write_out(str(folder), verbose=False)
