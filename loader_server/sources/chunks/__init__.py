"""Long recordings and texts cut into chunks, each of which is a sample: where they are cut, and a source of them."""
