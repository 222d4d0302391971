"""HDF5 files: rows, ragged values, lists, and the layout of RETURNN."""
