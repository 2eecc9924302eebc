"""What weights alone don't say: what moves between tokens, what heads write, what an output rests on, what stands out."""
