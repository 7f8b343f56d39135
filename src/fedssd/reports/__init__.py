"""What finished runs show: tables, charts and a page."""
