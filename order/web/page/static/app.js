// All works without this; it makes two things more pleasant.
(function () {
  "use strict";

  // One box ticks all letters on the page.
  var all = document.getElementById("select-all");
  if (all) {
    var boxes = Array.from(document.querySelectorAll("#letters input[name=id]"));
    var byFilter = document.querySelector("#letters input[name=scope][value=filter]");
    var byID = document.querySelector("#letters input[name=scope][value=ids]");
    var show = function () {
      var ticked = boxes.filter(function (box) { return box.checked; }).length;
      all.checked = ticked === boxes.length;
      all.indeterminate = ticked > 0 && ticked < boxes.length;
      if (ticked > 0 && byID && byFilter) byID.checked = true;
    };
    all.hidden = false;
    all.addEventListener("change", function () {
      boxes.forEach(function (box) { box.checked = all.checked; });
      show();
    });
    boxes.forEach(function (box) { box.addEventListener("change", show); });
    show();
  }

  // What is shown by polling says when the service has stopped to answer.
  var offline = document.getElementById("offline");
  if (offline) {
    var fails = function () { offline.hidden = false; };
    document.body.addEventListener("htmx:sendError", fails);
    document.body.addEventListener("htmx:responseError", fails);
    document.body.addEventListener("htmx:timeout", fails);
    document.body.addEventListener("htmx:afterSwap", function () { offline.hidden = true; });
  }
})();
