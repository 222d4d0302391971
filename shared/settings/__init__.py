"""The job file as frozen dataclasses, read once; unknown settings are refused."""
