"""All that a trainer decides, in one pure object with one door: `Core.handle(events, now_s) -> instructions`."""
