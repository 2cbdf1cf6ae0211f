"use strict";

// What a browser changes with its session's cookie carries the token of this page.
const form = document.querySelector('meta[name="X-Form-Token"]');

window.ui = SwaggerUIBundle({
  url: `${document.documentElement.dataset.rootPath}/openapi.json`,
  dom_id: "#docs",
  deepLinking: true,
  validatorUrl: null,
  defaultModelsExpandDepth: 0,
  requestInterceptor: (request) => {
    request.headers[form.name] = form.content;
    return request;
  },
});
