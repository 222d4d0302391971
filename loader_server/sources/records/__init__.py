"""Files of records: TFRecord, WebDataset's tar shards, ArrayRecord, and TensorFlow Datasets."""
