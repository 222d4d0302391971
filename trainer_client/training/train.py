"""`trainer-client train`: training of a user's model on a running job's stream, up to a target.

Rules: whatever can fail without a rank fails before one is taken, because attaching takes the rank from whoever trains
on it: the user's module, the model and its optimizer, and the validation streams. The coordinator has answered before
TensorFlow is imported, which takes seconds. Only one process of a run writes.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from shared.errors import SettingsError
from shared.keys import ClientKeys
from shared.quick_import import quick_import
from shared.system.closed_places import refuse_closed
from trainer_client.connecting import connect
from trainer_client.network.first_word import wait_for_coordinator
from trainer_client.training.runs.lines import exported_line, strategy_line

if TYPE_CHECKING:
    from pathlib import Path

    from trainer_client.feed import Feed
    from trainer_client.training.loop.placement import Placement
    from trainer_client.training.loop.training_loop import TrainingData
    from trainer_client.training.runs.model_module import ModelModule
    from trainer_client.training.strategies.options import StrategyOptions

__all__ = ["TrainOrder", "train"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOrder:
    """The settings of the command line, except the loop's own (see `LoopSettings`)."""

    module: ModelModule
    endpoint: str
    stream: str
    keys: str
    connect_timeout_s: float
    strategy: StrategyOptions
    #: Validation streams, and how often to evaluate on them: `epochs` or `steps` of `Validation`.
    judges: tuple[str, ...]
    judge_every: dict[str, Any]
    #: Where to write the trained model at the end; None: nowhere.
    export: Path | None
    precision: str
    seed: int | None
    #: Where to serve metrics: arguments of `connect`.
    metrics: dict[str, Any]


def train(order: TrainOrder, **settings: Any) -> None:
    """Train until the target is reached, with the strategy that the order names.

    Folders, validation streams and the user's module are checked before the training feed attaches.
    """
    if order.export is not None:
        _refuse_to_replace(order.export)
    if order.strategy.name == "parameter-server":
        _train_with_servers(order, settings)
        return
    with ExitStack() as stack:
        _wait_for_coordinator(order)
        # Ranks come from the placement, which imports TensorFlow. Only with a single device are the ranks known before:
        # then a bad validation stream is refused before that import.
        placement = None if order.strategy.name == "single" else _placement(order)
        ranks = {} if placement is None else placement.ranks
        judging = {"rank": 0} if placement is None else placement.judging
        judges = [stack.enter_context(_connect_judge(order, name, **judging)) for name in order.judges]
        placement = placement or _placement(order)
        _refuse_closed(order, settings, writes=placement.writes)
        from trainer_client.training.loop.training_loop import LoopSettings, TrainingLoop

        model = _model(order, placement)
        _refuse_without_roles(order.module)
        callbacks = _callbacks(order, judges)
        order.module.refuse_unknown_parameters()
        loop_settings = LoopSettings(**settings)
        # This takes the ranks from whoever trains on them, so all that may be refused without them was refused above.
        feed = stack.enter_context(_connect(order, order.stream, **ranks, **order.metrics))
        _refuse_evaluation(feed)
        for judge in judges:
            judge._session.evaluate_for(feed._session)
        data = _data(order, feed, placement)
        TrainingLoop(model, data, placement, loop_settings, callbacks).run()
        if order.export is not None and placement.writes:
            _export(order.export, model, data)


def _train_with_servers(order: TrainOrder, settings: dict[str, Any]) -> None:
    """Train as one of several workers, or serve as a parameter server, by this process's role.

    Raise SettingsError for validation by steps, as workers take no steps together.
    """
    from trainer_client.training.servers import command as servers

    if "steps" in order.judge_every:
        raise SettingsError(
            expected="--validate-every in epochs, as workers take no steps together", got="steps",
            where="--strategy parameter-server", remedy="Leave it out; or let epochs be shorter (epoch_parts).",
        )  # fmt: skip
    place = servers.role_with_servers()
    if place.is_ps:
        servers.serve_share(place, order.keys, partial(order.module.make, "optimizer"))
        return
    _refuse_closed(order, settings, writes=place.is_master)
    until = settings["until"]
    with ExitStack() as stack:
        # Only the chief calls callbacks, so only it connects to validation streams.
        names = order.judges if place.is_master else ()
        judges = [stack.enter_context(_connect_judge(order, name, rank=0)) for name in names]
        feed = stack.enter_context(
            _connect(order, order.stream, rank=0, epochs=servers.epochs_of(until), **order.metrics)
        )
        _refuse_evaluation(feed)
        with quick_import():  # TensorFlow takes seconds
            from trainer_client.training.loop.training_loop import LoopSettings
            from trainer_client.training.servers.served_loop import ServedLoop
            from trainer_client.training.strategies.single import Single
        model = _model(order, Single())
        data = _data(order, feed, Single())
        callbacks = _callbacks(order, judges) if place.is_master else []
        order.module.refuse_unknown_parameters()
        connections = servers.connections_to(place, order.keys, order.connect_timeout_s)
        stack.callback(connections.close)
        worker = servers.worker_settings(place, order.strategy, until)
        ServedLoop(model, data, connections, worker, LoopSettings(**settings), callbacks).run()
        if order.export is not None and place.is_master:
            _export(order.export, model, data)


def _wait_for_coordinator(order: TrainOrder) -> None:
    """Wait until the coordinator answers, before the slow imports of TensorFlow and the user's module."""
    keys = ClientKeys.read(order.keys, "trainer", to="coordinator") if order.keys else None
    wait_for_coordinator(order.endpoint, keys, order.connect_timeout_s)


def _connect(order: TrainOrder, stream: str, **how: Any) -> Feed:
    return connect(order.endpoint, stream=stream, keys=order.keys, connect_timeout_s=order.connect_timeout_s, **how)


def _connect_judge(order: TrainOrder, stream: str, **how: Any) -> Feed:
    """Connect to a validation stream, before the training feed takes anybody's rank.

    Raise SettingsError if the stream is one for training.
    """
    feed = _connect(order, stream, work="evaluate", **how)
    if not feed._session.evaluation:
        feed.close()
        raise SettingsError(
            expected="a stream with evaluation = true", got="one for training", where=f"--validate {stream}",
            remedy="Name a stream that is like the one for training, or write evaluation = true in it.",
        )  # fmt: skip
    return feed


def _placement(order: TrainOrder) -> Placement:
    with quick_import():  # TensorFlow takes seconds
        from trainer_client.training.loop import training_loop  # noqa: F401 - as said
        from trainer_client.training.strategies.by_name import placement_of
    placement = placement_of(order.strategy)
    if placement.choice:
        print(strategy_line(placement.choice), flush=True)
    return placement


def _refuse_evaluation(feed: Feed) -> None:
    stream = feed._session.stream
    if feed._session.evaluation:
        raise SettingsError(
            expected="a stream for training", got=f"{stream}, which is for evaluation", where=f"--stream {stream}",
            remedy=f"Judge by it: --validate {stream}.",
        )  # fmt: skip


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


def _refuse_without_roles(module: ModelModule) -> None:
    """Raise SettingsError if the module has neither `dataset_pipeline` nor `feed_keys`.

    Which of the two the stream needs is only known once it is open.
    """
    if module.find("dataset_pipeline") is None:
        module.feed_keys()


def _data(order: TrainOrder, feed: Feed, placement: Placement) -> TrainingData:
    from trainer_client.training.loop.training_loop import TrainingData

    if feed._session.producers:
        elements = placement.pipeline(feed, order.module.require("dataset_pipeline"))
        return TrainingData(feed=feed, elements=elements, for_each_shape=None)
    keys = order.module.feed_keys()
    return TrainingData(
        feed=feed,
        elements=placement.data(feed, keys),
        for_each_shape=partial(feed.warm_up, **keys),
    )


def _callbacks(order: TrainOrder, judges: list[Feed]) -> list[Any]:
    """Return the callbacks, with validation first, so that the module's own find its values in the logs."""
    own = list(order.module.make_if_there("callbacks") or ())
    if not judges:
        return own
    from trainer_client.training.evaluating.validation import Validation

    metrics = order.module.make_if_there("eval_metrics") or ()
    return [Validation(*judges, **order.judge_every, metrics=metrics, **order.module.feed_keys()), *own]


def _refuse_to_replace(path: Path) -> None:
    """Raise SettingsError if the export would replace a folder that is not an exported model."""
    is_folder_for_file = path.suffix == ".keras" and path.is_dir()
    is_no_model = path.is_dir() and any(path.iterdir()) and not (path / "saved_model.pb").exists()
    if is_folder_for_file or is_no_model:
        raise SettingsError(
            expected="a path of its own, or a model there that is to be replaced", got="a folder with something else",
            where=f"--export {path}", remedy="Name a path that is not there yet.",
        )  # fmt: skip


def _refuse_closed(order: TrainOrder, settings: dict[str, Any], *, writes: bool) -> None:
    """Raise SettingsError now, not after hours of training, for a folder that the writer may not write to."""
    places = {
        "--checkpoint": settings["checkpoints"],
        "--summaries": settings["summaries"],
        "--export": order.export.parent if order.export is not None else None,
    }
    for option, folder in places.items():
        if writes and folder is not None:
            refuse_closed(folder, where=option)


def _export(path: Path, model: Any, data: TrainingData) -> None:
    from trainer_client.training.export import export_model

    spec: Any = data.elements.element_spec  # type: ignore[attr-defined] # of a tf.data.Dataset
    export_model(model, spec[0] if isinstance(spec, tuple) else spec, path)
    print(exported_line(path), flush=True)
