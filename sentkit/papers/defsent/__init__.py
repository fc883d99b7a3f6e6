"""Takes definitions of words and returns the losses of DefSent and DefSent+."""
