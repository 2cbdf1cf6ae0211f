"""What leaves a device that is too small, and when: GeePS' placement of data as a pure schedule.

Imports documents and errors only, and loads no torch: the simulator schedules what a graph tells,
the runtime what a pass of the job has told.
"""
