"""Tokens: texts as the numbers that a trained tokenizer gives them."""
