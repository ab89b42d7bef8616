"""The click model: embeddings, crosses, deep layers, heads and transfer functions, of plain TensorFlow variables."""
