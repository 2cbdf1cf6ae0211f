"""Reading the database for people: reports, exports, timelines."""
