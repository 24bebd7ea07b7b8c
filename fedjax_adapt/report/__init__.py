"""Reports: pictures and tables, from run folders alone."""
