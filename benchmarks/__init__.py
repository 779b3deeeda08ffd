"""What fedmend's speed, memory and growth are measured with: `python -m benchmarks`.

Each benchmark is a file with a function that gives plain rows. They are kept as JSON in
`results/`, with the machine and the versions they were measured on; `report.py` writes
`docs/benchmarks.md` from those files and from the hand-written `remarks/`. Nothing here is a test:
figures stand beside their targets, and no time is ever asserted.
"""
