"""The file of `wherry report`: what the page shows, in one document that loads nothing."""
