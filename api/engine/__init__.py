"""What runs tunings: requests, the queue, its workers, and the stores they write to.

May import db.
"""
