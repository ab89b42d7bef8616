"""Drafts the mapping of an unknown table from the columns' roles: begin with ``draft_mapping`` of ``draft.py``.

``dialect.py`` finds the files and their format, and reads their first rows, ``columns.py`` finds the kind of each
column, ``roles.py`` checks the columns that the user named.
"""
