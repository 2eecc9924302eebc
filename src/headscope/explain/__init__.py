"""What weights alone don't say: what moves between tokens, what heads write, what outputs rest on, what stands out."""
