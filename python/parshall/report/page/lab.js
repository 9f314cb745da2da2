// Draws every figure of a page whose figures stand for themselves.
"use strict";
parshallFigures.drawAll();
