"""Click models: embeddings, crosses, deep layers, heads and transfer functions over named weights.

Begin with ``click_model.py``, whose ``forward`` maps weights and inputs to scores; ``architecture.py`` has
the model's shape, ``initial_weights.py`` its initial weights. ``dcn.py``, ``crosses.py`` and
``activations.py`` are its layers, ``embeddings.py`` and ``rows.py`` the tables. The package reads no files, and has no
training loop or optimizer.
"""
