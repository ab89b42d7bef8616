"""What ``ctr quickstart`` infers of a stranger's table: begin with ``infer`` of ``infer.py``.

``files.py`` and ``delimited.py`` find out how a table is read, ``sample.py`` reads some of its rows, and
``columns.py`` profiles their columns. ``labels.py``, ``times.py``, ``queries.py`` and ``roles.py`` choose the roles,
by the words of ``lexicon.py``; ``leaks.py`` and ``features.py`` decide about the other columns. ``mapping_text``
writes what is inferred.
"""
