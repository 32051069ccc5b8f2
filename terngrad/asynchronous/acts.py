"""What a worker may ask of a ps: the numbers of `Act` in service.proto."""

MORE, ENTER, BEGIN, STATE, PUSH, PULL, FETCH, BYE = range(8)
