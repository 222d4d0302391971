"""Tokens: texts as ids from a trained tokenizer."""
