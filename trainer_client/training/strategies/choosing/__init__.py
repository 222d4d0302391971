"""Choices between what was asked for and what the devices allow."""
