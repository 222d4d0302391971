"""`EarlyStop`: the end of `fit` by rules, which decide the same in a run that was resumed.

Rules: the values of all evaluations are its whole state. Given to `FeedCheckpoint`, that state is committed together
with the model, whichever callback comes first; an epoch that was left in the middle does not count as evaluated. It
must not know feeds or files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import keras

from shared.errors import SettingsError
from trainer_client.network.trainer_log import process_log
from trainer_client.training.runs.stop_rules import StopRule, stopping_rule

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["EarlyStop"]


class EarlyStop(keras.callbacks.Callback):  # type: ignore[misc] # Keras has no types
    """A Keras callback that stops training when one of its rules holds for all evaluations so far.

    It decides after each epoch, and wherever `Validation` judges within epochs. Give it to
    `FeedCheckpoint(early_stop=)`, or to `fit` if there is no checkpoint.

    Args:
        *rules: `NoProgress`, `Worsening`, `LevelledOff`, or objects of your own with a method `holds(losses)`.
        monitor: The value to go by, as the logs call it. It should come from an evaluation: a mean over an epoch's
            training changes if the epoch is resumed in its middle.
        mode: Whether lower (`"min"`) or higher (`"max"`) is better.

    Attributes:
        reason: Why it stopped; empty while training goes on.

    Raises:
        SettingsError: There is no rule, or no such mode.

    Example:
        >>> stop = trainer_client.EarlyStop(trainer_client.NoProgress(1), monitor="val_loss")
        >>> form = {"inputs": "audio", "targets": "audio_length", "weights": "weight"}
        >>> history = model.fit(
        ...     feed.dataset(**form), validation_data=dev.dataset(**form), epochs=3, callbacks=[stop], verbose=0
        ... )
        >>> len(history.history["val_loss"]) == 3 or "NoProgress" in stop.reason
        True
    """

    def __init__(self, *rules: StopRule, monitor: str = "val_loss", mode: Literal["min", "max"] = "min") -> None:
        super().__init__()
        if not rules or mode not in ("min", "max"):
            raise SettingsError(
                expected='at least one rule, and mode "min" or "max"', got=f"{len(rules)} rules, mode {mode!r}",
                where="EarlyStop", remedy="Write EarlyStop(NoProgress(3)), for example.",
            )  # fmt: skip
        self.reason = ""
        self._rules = rules
        self._monitor = monitor
        #: Rules take losses, so values of which higher ones are better are negated for them.
        self._sign = 1.0 if mode == "min" else -1.0
        #: The monitored values, by epoch or by number. They are the whole state, so a run that was stopped and resumed
        #: at any step takes the same decisions as one that was not.
        self._values: dict[int, float] = {}
        #: Whether `FeedCheckpoint` or a loop of ours notes values and brings them back, instead of Keras's calls.
        self._kept_by_checkpoint = False

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Forget earlier values and start anew, unless a checkpoint brings the values back."""
        if not self._kept_by_checkpoint:
            self.restore({})

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Note the value if the model was evaluated after this step, and stop if a rule holds; errors of rules pass."""
        self.model.stop_training |= self.note_step(logs or {})

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Note the value and stop if a rule holds; do nothing if a checkpoint keeps the values.

        Raise SettingsError if the logs lack the value `monitor`, and none can come later; errors of rules pass through.
        """
        if not self._kept_by_checkpoint:
            self.model.stop_training |= self.note(epoch, logs or {})

    def be_kept_by_checkpoint(self) -> None:
        """Leave the values to a checkpoint, which keeps them and brings them back; `FeedCheckpoint` calls this."""
        self._kept_by_checkpoint = True

    def note_step(self, logs: Mapping[str, Any]) -> bool:
        """Note the value if the model was evaluated after a step, and return whether to stop; errors of rules pass.

        Args:
            logs: The step's logs.

        Returns:
            True if training is to stop; False also if `monitor` does not begin with `val_`, or is not in the logs.
        """
        if not self._monitor.startswith("val_") or self._monitor not in logs:
            return False
        # Numbered on, because an epoch may have several evaluations.
        self._values[max(self._values, default=-1) + 1] = float(logs[self._monitor])
        self._decide()
        return bool(self.reason)

    def note(self, epoch: int, logs: Mapping[str, Any], *, is_trained: bool = True) -> bool:
        """Note an epoch's value if the epoch was evaluated, and return whether to stop; errors of rules pass.

        Args:
            epoch: The epoch's number.
            logs: The epoch's logs.
            is_trained: Whether this trainer trained on some of the epoch; otherwise there may be no value.

        Returns:
            True if training is to stop, by the last decision if there is no value now.

        Raises:
            SettingsError: The logs have no value of the name `monitor`, and none can come later.
        """
        if self._monitor in logs:
            self._values[epoch] = float(logs[self._monitor])
            self._decide()
        elif is_trained and not self._may_come_later(logs):
            raise SettingsError(
                expected=f'"{self._monitor}" among what an epoch is judged by', got=", ".join(logs) or "nothing",
                where="EarlyStop", remedy="Name one of these as monitor, and callbacks that add to them before it.",
            )  # fmt: skip
        return bool(self.reason)

    def _may_come_later(self, logs: Mapping[str, Any]) -> bool:
        """Return whether a later epoch may have the value, as not every epoch need be evaluated.

        It may if it is one of validation (`val_…`) and the logs have none of these.
        """
        return self._monitor.startswith("val_") and not any(name.startswith("val_") for name in logs)

    def _decide(self) -> None:
        values = list(self._values.values())
        rule = stopping_rule(self._rules, [self._sign * value for value in values])
        if rule is None:
            self.reason = ""
            return
        self.reason = f"{self._monitor} is {values[-1]:g} after {len(values)} evaluations: {rule}"
        process_log().info("stopped early", reason=self.reason)

    def state(self) -> dict[str, Any]:
        """Return the values so far, for a checkpoint.

        Returns:
            A dict that JSON can hold.
        """
        return {"evaluated": sorted(self._values.items())}

    def restore(self, state: Mapping[str, Any]) -> bool:
        """Go back to what `state` returned, and return whether training is to stop at once; errors of rules pass.

        Args:
            state: What `state` returned; an empty dict begins anew.

        Returns:
            True if a rule holds already.
        """
        self._values = {int(epoch): float(value) for epoch, value in state.get("evaluated", ())}
        self._decide()
        return bool(self.reason)
