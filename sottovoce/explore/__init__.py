"""Local web page that shows what leaves a device for a sentence, what it reveals and what it costs."""
