"""All decisions of a trainer, in one object with one door: `Core.handle(events, now_s) -> instructions`. Pure."""
