"""Other programs' data sets: YOLO's, Pascal VOC's, and COCO's in any layout of folders."""
