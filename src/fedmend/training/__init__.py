"""One silo's training, the rounds of all, and the parts that methods put together of them."""
