"""All that a trainer decides, in one object with one door: `Core.handle(events, now_s) -> instructions`. Pure."""
