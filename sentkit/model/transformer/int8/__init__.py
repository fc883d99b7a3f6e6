"""Takes an encoder in float32 and calibration texts and returns it with matrix products of 8-bit integers."""
