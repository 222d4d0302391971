"""Tokens: texts as the ids that a trained tokenizer gives them."""
