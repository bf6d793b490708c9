"""Reports: pictures and pages a person can open."""
