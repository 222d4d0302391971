"""The planner: which samples make which batch. See README.md for the ideas; `Plan.make` is the way in."""

from loader_server.planning.epoch import EpochPlan, PlannedBatch
from loader_server.planning.plan import PLANNER_VERSION, Plan
from loader_server.planning.settings import PlanSettings
from loader_server.planning.survey import LengthTable

__all__ = ["PLANNER_VERSION", "EpochPlan", "LengthTable", "Plan", "PlanSettings", "PlannedBatch"]
