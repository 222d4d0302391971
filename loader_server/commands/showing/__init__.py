"""`loader-server show`: any batch, looked at as a table, a picture or sound."""
