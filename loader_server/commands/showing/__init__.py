"""`loader-server show`: any batch, shown as a table, a picture or sound."""
