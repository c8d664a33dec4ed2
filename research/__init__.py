"""Our own studies: their runner, a world of pictures for real decoders, rate sweeps. The product imports none."""
