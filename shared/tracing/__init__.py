"""What a batch went through, as stamps in each process, and the answers about them."""
