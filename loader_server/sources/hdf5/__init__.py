"""HDF5 files: fixed and ragged rows, variable-length types, virtual datasets, and RETURNN's layout."""
