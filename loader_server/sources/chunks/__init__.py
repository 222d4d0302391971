"""Long recordings and texts cut into chunks, each a sample of its own: where they are cut, and a source of them."""
