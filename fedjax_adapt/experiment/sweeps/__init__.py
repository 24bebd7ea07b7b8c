"""Sweeps: many runs, those that differ in numbers, seeds and partitions in one program.

grid.py            what a file says, and the trials that follow
groups.py          which of them share a program
differences.py     in what they may differ: numbers, and who holds which examples
compiled_group.py  the trials of a group as one program, and where they run
sweep.py           runs group after group, some trials at once
space.py           what a search may choose, and how its file says it
tune.py            settings chosen by validation accuracy, sweep after sweep
results.py         the folder that is left, and those of its trials
"""
