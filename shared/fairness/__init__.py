"""Measures that keep one peer of a server from taking more than its share."""
