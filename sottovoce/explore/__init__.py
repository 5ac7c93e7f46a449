"""Local web page: type a sentence, see what leaves a device, what it tells and what it costs."""
