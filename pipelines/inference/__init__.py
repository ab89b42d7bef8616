"""What ``ctr quickstart`` infers of a stranger's table: begin with ``infer`` of ``infer.py``.

``files.py`` and ``delimited.py`` find out how a table is read, ``sample.py`` reads some of its rows, and
``columns.py`` profiles their columns. ``roles.py``, ``labels.py``, ``times.py`` and ``queries.py`` choose the roles,
by the words of ``names.py``; ``leaks.py`` and ``features.py`` decide about the other columns. ``mapping_file.py``
writes the result.
"""
