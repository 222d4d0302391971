"""The metrics of coordinator and workers: their declarations, and their present values as samples."""
