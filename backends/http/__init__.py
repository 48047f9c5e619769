"""A small HTTP/1.1 client for the requests that carry bytes, or come by the thousand. It knows no vendor and no credentials."""
