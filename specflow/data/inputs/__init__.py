"""From sources of many forms to one set of prompts.

``prepare`` reads every source in chunks, in worker processes, and decides which rows are used. Everything of a size
that grows with the rows lies on the disk, except ten bytes per row. The result is a function of the sources and
parameters alone: it does not depend on the number of workers.

    readers/     files and data sets, cut into chunks that are read on their own
    forms/       one adapter per form: from a row to messages
    rows         from a value to a row in the common form, or the reason why not
    chunk        one chunk: its rows, and what is needed to compare them, in files of its own
    workers      chunks in several processes, results in order
    comparing    equal rows, repeated ids, rows that are also held out
    near         nearly equal rows
    drawing      which rows a mixture by weight takes, and in which order
    prepare      all of these in turn
"""
