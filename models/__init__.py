"""Click models: embeddings, crosses, deep layers, heads and transfer functions over named weights.

Begin with ``click_model.py``, whose ``forward`` maps weights and inputs to scores; ``architecture.py`` says
which weights there are, ``initial_weights.py`` how they begin. ``dcn.py``, ``crosses.py`` and
``activations.py`` are its layers, ``embeddings.py`` and ``rows.py`` the tables. No files, no loop, no
optimizer.
"""
